"""The first tables."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Made by `python manage.py makemigrations`."""

    initial = True
    dependencies: list[tuple[str, str]] = []  # noqa: RUF012 - as Django writes it
    operations = [  # noqa: RUF012
        migrations.CreateModel(
            name="Order",
            fields=[
                ("order_id", models.CharField(max_length=40, primary_key=True, serialize=False)),
                ("cents", models.IntegerField()),
            ],
        ),
        migrations.CreateModel(
            name="TransactionRecord",
            fields=[
                ("transaction_id", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("producer_group", models.CharField(max_length=120)),
                ("state", models.CharField(max_length=8)),
                ("at_ms", models.BigIntegerField(db_index=True)),
            ],
            options={"db_table": "outbox_transaction"},
        ),
    ]
