"""Reads users from a CSV file, and prints a timer for each of them, one a line, for `dagctl timers create --batch -`.

The columns are id, first_name, last_name, date_of_birth (YYYY-MM-DD) and timezone (IANA). A file with a row that does
not fit makes no timer, and neither does one with two rows of a user that differ; rows that say the same are one. The
user's id is the timer's group, by which all that waits for a user moves or goes."""

import csv
import datetime
import json
import sys
import zoneinfo

ZONES = zoneinfo.available_timezones()
COLUMNS = ("id", "first_name", "last_name", "date_of_birth", "timezone")


def timer(row: dict, today: datetime.date) -> dict:
    """Returns the timer of a user, or raises ValueError."""
    row = {name: (row[name] or "").strip() for name in COLUMNS}
    for name in ("id", "first_name", "last_name"):
        if not 0 < len(row[name]) <= 100:
            raise ValueError(f"{name} must have 1 to 100 characters")
    born = datetime.date.fromisoformat(row["date_of_birth"])
    if not datetime.date(1900, 1, 1) <= born < today:
        raise ValueError(f"date_of_birth {born} must be from 1900 on, and past")
    if row["timezone"] not in ZONES:
        raise ValueError(f"timezone {row['timezone']!r} is not an IANA time zone")
    return {
        "target_timestamp_local": f"{born}T09:00:00",
        "target_timezone": row["timezone"],
        "repeat": "yearly",
        "event_type": "BIRTHDAY",
        "group": row["id"],
        "idempotency_key": f"birthday:{row['id']}",  # a user who is imported again keeps the timer
        "delivery_payload": {"user": row["id"], "first_name": row["first_name"], "last_name": row["last_name"]},
    }


def main(path: str) -> int:
    today, timers, faults = datetime.date.today(), {}, []
    with open(path, newline="", encoding="utf-8-sig") as file:  # spreadsheets begin their files with a byte order mark
        rows = csv.DictReader(file)
        for row in rows:
            try:
                made = timer(row, today)
                known, line = timers.setdefault(made["group"], (made, rows.line_num))
                if known != made:
                    raise ValueError(f"user {made['group']!r} is on line {line} already, with something else: keep one")
            except (KeyError, ValueError) as fault:
                text = f"there is no column {fault}" if isinstance(fault, KeyError) else fault
                faults.append(f"{path}:{rows.line_num}: {text}")
    for fault in faults:
        print(fault, file=sys.stderr)
    if faults:
        return 1
    for made, _ in timers.values():
        print(json.dumps(made))
    return 0


sys.exit(main(sys.argv[1]))
