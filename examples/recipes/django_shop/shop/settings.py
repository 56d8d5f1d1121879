"""As small as a project can be; only the last part is about messages."""

import os
from pathlib import Path

from reliamsg import Site

STATE_DIRECTORY = Path(os.environ.get("STATE_DIRECTORY", "."))

SECRET_KEY = os.environ.get("SECRET_KEY", "only for this example")
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
INSTALLED_APPS = ["shop"]
ROOT_URLCONF = "shop.urls"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": STATE_DIRECTORY / "shop.sqlite3",
        "OPTIONS": {"timeout": 30, "transaction_mode": "IMMEDIATE"},
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True

MESSAGE_SITES = [Site(*site.split("=", 1)) for site in os.environ["SITES"].split()]
MESSAGE_PRODUCER = os.environ.get("PRODUCER", "shop")
MESSAGE_OUTBOXES = int(os.environ.get("WEB_CONCURRENCY", "2"))
"""As many as there are worker processes: none is left alone. gunicorn reads the same variable."""
