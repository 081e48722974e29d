import pandas as pd
from sqlmesh import ExecutionContext, model


@model(
    "flights.prices",
    kind={"name": "INCREMENTAL_BY_TIME_RANGE", "time_column": "month"},
    start="2026-01-01",
    cron="30 0 1 * *",
    columns={"month": "date", "price": "int"},
)
def execute(context: ExecutionContext, start, end, execution_time, **kwargs):
    months = pd.period_range(start, end, freq="M")
    return pd.DataFrame({"month": months.to_timestamp(), "price": 70 + months.month})
