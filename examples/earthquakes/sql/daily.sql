-- One row per day, region and band of magnitude.
SELECT
    CAST(occurred_at AS DATE) AS day,
    region,
    CASE
        WHEN magnitude < 1 THEN 'below 1'
        WHEN magnitude < 2 THEN '1 to 2'
        WHEN magnitude < 3 THEN '2 to 3'
        WHEN magnitude < 4 THEN '3 to 4'
        WHEN magnitude < 5 THEN '4 to 5'
        ELSE '5 and more'
    END AS magnitude_band,
    count(*) AS earthquakes,
    max(magnitude) AS strongest,
    median(depth_km) AS median_depth_km,
    CAST(sum(felt_reports) AS BIGINT) AS felt_reports
FROM events
GROUP BY day, region, magnitude_band
ORDER BY day, strongest DESC, region
