-- Earthquakes only: the feed also has explosions and quarry blasts. Times are milliseconds since 1970, positions are
-- [longitude, latitude, depth].
SELECT
    id,
    CAST(make_timestamp(CAST(properties.time AS BIGINT) * 1000) AS TIMESTAMP) AS occurred_at,
    CAST(properties.mag AS DOUBLE) AS magnitude,
    properties.magType AS magnitude_type,
    properties.place AS place,
    -- "4km W of Castaic, CA" ends in the region; a place without a comma is one.
    CASE trim(regexp_extract(properties.place, '[^,]*$'))
        WHEN 'CA' THEN 'California'
        WHEN 'MX' THEN 'Mexico'
        ELSE trim(regexp_extract(properties.place, '[^,]*$'))
    END AS region,
    CAST(geometry.coordinates[2] AS DOUBLE) AS latitude,
    CAST(geometry.coordinates[1] AS DOUBLE) AS longitude,
    CAST(geometry.coordinates[3] AS DOUBLE) AS depth_km,
    CAST(coalesce(properties.felt, 0) AS INTEGER) AS felt_reports,
    properties.status AS status,
    properties.url AS url
FROM feed
WHERE properties.type = 'earthquake'
ORDER BY occurred_at, id
