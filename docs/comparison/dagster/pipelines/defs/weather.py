import os

import dagster as dg
from dagster_duckdb import DuckDBResource

eager = dg.AutomationCondition.eager()


def table(duckdb: DuckDBResource, name: str, query: str):
    with duckdb.get_connection() as conn:
        conn.execute(f"CREATE OR REPLACE TABLE {name} AS {query}")


@dg.asset
def weather_months(duckdb: DuckDBResource):
    table(duckdb, "weather_months", """
        SELECT min(date) AS month, count(*) AS days, sum(rain) AS rain, max(highest) AS highest
        FROM 'data/daily.csv'
        GROUP BY date_trunc('month', date)
    """)


@dg.asset(deps=[weather_months], automation_condition=eager)
def weather_quarters(duckdb: DuckDBResource):
    table(duckdb, "weather_quarters", """
        SELECT min(month) AS quarter, sum(days)::INT AS days, sum(rain) AS rain
        FROM weather_months
        GROUP BY date_trunc('quarter', month) HAVING count(*) = 3
    """)


@dg.asset(deps=[weather_months], automation_condition=eager)
def weather_year_over_year(duckdb: DuckDBResource):
    table(duckdb, "weather_year_over_year", """
        SELECT this.month, this.rain, earlier.rain AS rain_a_year_ago, this.rain - earlier.rain AS more
        FROM weather_months AS this
        JOIN weather_months AS earlier ON earlier.month = this.month - INTERVAL 1 YEAR
    """)


@dg.sensor(target=weather_months, minimum_interval_seconds=30)
def daily_changed(context: dg.SensorEvaluationContext):
    return dg.RunRequest(run_key=str(os.stat("data/daily.csv").st_mtime_ns))
