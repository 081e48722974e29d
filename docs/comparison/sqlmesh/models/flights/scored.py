from sqlmesh import ExecutionContext, model


@model(
    "flights.scored",
    kind={"name": "INCREMENTAL_BY_TIME_RANGE", "time_column": "date"},
    cron="@daily",
    columns={"date": "date", "carrier": "text", "delay": "int", "late": "int"},
)
def execute(context: ExecutionContext, start, end, execution_time, **kwargs):
    days = context.fetchdf(f"""SELECT date, carrier, delay FROM 'data/flights.parquet'
        WHERE date BETWEEN '{start:%Y-%m-%d}' AND '{end:%Y-%m-%d}'""")
    days["late"] = (days["delay"] >= 15).astype(int)
    yield from () if days.empty else (days,)
