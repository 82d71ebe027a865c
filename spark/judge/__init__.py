"""What a run concludes: fold, rules, totals."""
