"""Seeds of programs that once differed; `test_findings` has the shortest form of each reason. They run first."""

SEEDS = (9, 17, 21, 34, 35, 48, 89, 106, 121, 137, 161, 178)
