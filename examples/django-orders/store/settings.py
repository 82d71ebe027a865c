"""Settings of the project. What belongs to the bridge is at the end."""

import os
from pathlib import Path

BASE_DIR = Path(__file__).parent.parent

DEBUG = os.environ.get("DEBUG") == "1"
SECRET_KEY = os.environ.get("SECRET_KEY", "an example without sessions signs nothing")
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "store.urls"
INSTALLED_APPS = ["store"]
MIDDLEWARE = ["django.middleware.common.CommonMiddleware"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("DATABASE_FILE", str(BASE_DIR / "orders.db")),
        # WAL: or checks could not read while an order is being committed
        "OPTIONS": {"timeout": 10, "transaction_mode": "IMMEDIATE", "init_command": "PRAGMA journal_mode=WAL"},
        "TEST": {"NAME": str(BASE_DIR / "test.db")},  # in memory, as Django has it else, no check could look
        "ATOMIC_REQUESTS": False,  # the local transaction is the block of bridge.transaction
    }
}

BRIDGE_URL = os.environ.get("BRIDGE_URL", "http://127.0.0.1:8780")
BRIDGE_GROUP = "django-orders"
CHECK_SECRETS = os.environ.get("CHECK_SECRETS", "").split()  # two for a day while one takes the place of the other
CHECK_DATABASE_URL = f"sqlite:///{DATABASES['default']['NAME']}"  # the same database, as SQLAlchemy names it
