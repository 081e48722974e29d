import os

import dagster as dg
from dagster_duckdb import DuckDBResource

FILES = ["data/all_week.geojson", "data/airports.csv"]
NEAR = """
    WITH events AS (
      SELECT f.id, CAST(f.properties.mag AS DOUBLE) AS magnitude, f.properties.place AS place,
        CAST(f.geometry.coordinates[1] AS DOUBLE) AS longitude, CAST(f.geometry.coordinates[2] AS DOUBLE) AS latitude
      FROM (SELECT unnest(features) AS f FROM read_json('data/all_week.geojson')))
    SELECT e.id, e.magnitude, e.place, a.iata, a.name,
      round(111 * sqrt((a.latitude - e.latitude) ** 2
        + ((a.longitude - e.longitude) * cos(radians(e.latitude))) ** 2), 1) AS km
    FROM events AS e
    JOIN read_csv('data/airports.csv', nullstr = 'NA') AS a ON abs(a.latitude - e.latitude) < 1 AND abs(a.longitude - e.longitude) < 1
    QUALIFY row_number() OVER (PARTITION BY e.id ORDER BY km, a.iata) = 1
"""


@dg.asset
def quakes_near_airports(duckdb: DuckDBResource):
    with duckdb.get_connection() as conn:
        conn.execute(f"ATTACH '{os.environ['PG_URL']}' AS pg (TYPE postgres)")
        conn.execute("BEGIN")
        conn.execute("DROP TABLE IF EXISTS pg.quakes_near_airports")
        conn.execute(f"CREATE TABLE pg.quakes_near_airports AS {NEAR}")
        conn.execute("CREATE INDEX near_iata ON pg.quakes_near_airports (iata)")
        conn.execute("COMMIT")


@dg.sensor(target=quakes_near_airports, minimum_interval_seconds=30)
def quakes_changed(context: dg.SensorEvaluationContext):
    return dg.RunRequest(run_key=" ".join(str(os.stat(f).st_mtime_ns) for f in FILES))
