"""Tables of the shop, and the transaction records."""

from django.db import models


class Order(models.Model):
    """An order."""

    order_id = models.CharField(max_length=40, primary_key=True)
    cents = models.IntegerField()


class TransactionRecord(models.Model):
    """What `outbox.transaction_record` reads: its table, with its columns."""

    transaction_id = models.CharField(max_length=64, primary_key=True)
    producer_group = models.CharField(max_length=120)
    state = models.CharField(max_length=8)
    at_ms = models.BigIntegerField(db_index=True)

    class Meta:
        """The name under which checks look for it."""

        db_table = "outbox_transaction"
