import dagster as dg
import pandas as pd
from dagster_duckdb import DuckDBResource

days = dg.DailyPartitionsDefinition(start_date="2026-01-01")
months = dg.MonthlyPartitionsDefinition(start_date="2026-01-01")
eager = (
    dg.AutomationCondition.eager()
    .without(dg.AutomationCondition.in_latest_time_window())
    .without(~dg.AutomationCondition.any_deps_missing())
)


def replace(duckdb: DuckDBResource, table: str, column: str, window, rows: str, frame=None):
    where = f"{column} >= DATE '{window.start:%Y-%m-%d}' AND {column} < DATE '{window.end:%Y-%m-%d}'"
    with duckdb.get_connection() as conn:
        conn.execute(f"CREATE TABLE IF NOT EXISTS {table} AS FROM ({rows}) LIMIT 0")
        conn.execute("BEGIN")
        conn.execute(f"DELETE FROM {table} WHERE {where}")
        conn.execute(f"INSERT INTO {table} FROM ({rows}) WHERE {where}")
        conn.execute("COMMIT")


@dg.asset(partitions_def=days, backfill_policy=dg.BackfillPolicy.single_run())
def flights_scored(context: dg.AssetExecutionContext, duckdb: DuckDBResource):
    window = context.partition_time_window
    frame = pd.read_parquet("data/flights.parquet", filters=[
        ("date", ">=", window.start.date()), ("date", "<", window.end.date())])
    frame["late"] = (frame["delay"] >= 15).astype(int)
    replace(duckdb, "flights_scored", "date", window, "SELECT date, carrier, delay, late FROM frame", frame)


@dg.asset(partitions_def=months)
def prices(context: dg.AssetExecutionContext, duckdb: DuckDBResource):
    window = context.partition_time_window
    replace(duckdb, "prices", "month", window,
            f"SELECT DATE '{window.start:%Y-%m-%d}' AS month, {70 + window.start.month} AS price")


@dg.asset(deps=[flights_scored, prices], partitions_def=months, automation_condition=eager)
def monthly_delays(context: dg.AssetExecutionContext, duckdb: DuckDBResource):
    replace(duckdb, "monthly_delays", "month", context.partition_time_window, """
        SELECT month, carrier, count(*) AS flights, sum(late)::BIGINT AS late, any_value(price) AS price
        FROM flights_scored JOIN prices ON month = date_trunc('month', date)
        GROUP BY month, carrier ORDER BY month, carrier
    """)


monthly_prices = dg.build_schedule_from_partitioned_job(
    dg.define_asset_job("monthly_prices", selection=[prices]), minute_of_hour=30)
