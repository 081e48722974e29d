MODEL (name pg.quakes.near_airports, kind FULL);
WITH events AS (
  SELECT f.id, CAST(f.properties.mag AS DOUBLE) AS magnitude, f.properties.place AS place,
    CAST(f.geometry.coordinates[1] AS DOUBLE) AS longitude, CAST(f.geometry.coordinates[2] AS DOUBLE) AS latitude
  FROM (SELECT unnest(features) AS f FROM read_json('data/all_week.geojson')))
SELECT e.id, e.magnitude, e.place, a.iata, a.name,
  round(111 * sqrt((a.latitude - e.latitude) ** 2
    + ((a.longitude - e.longitude) * cos(radians(e.latitude))) ** 2), 1) AS km
FROM events AS e
JOIN read_csv('data/airports.csv', nullstr = 'NA') AS a ON abs(a.latitude - e.latitude) < 1 AND abs(a.longitude - e.longitude) < 1
QUALIFY row_number() OVER (PARTITION BY e.id ORDER BY km, a.iata) = 1;
CREATE INDEX IF NOT EXISTS near_iata ON @this_model (iata)
