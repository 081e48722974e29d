WITH tens AS (
  SELECT range_start, range_end FROM archived_tens UNION SELECT range_start, range_end FROM uploaded_tens
), readings AS (
  SELECT number, meter, pulses FROM archive UNION SELECT number, meter, pulses FROM uploads -- each of them once
)
SELECT range_start AS first, range_end AS past, place, meter, sum(pulses * per_pulse) AS amount, any_value(unit) AS unit
FROM tens
JOIN readings ON number >= range_start AND number < range_end
JOIN meters USING (meter)
GROUP BY ALL
ORDER BY first, place, meter
