-- The stretches of numbers without gaps: number less its place is the same in each of them.
SELECT min(number) AS range_start, max(number) + 1 AS range_end
FROM (SELECT number, number - row_number() OVER (ORDER BY number) AS stretch FROM (SELECT DISTINCT number FROM readings))
GROUP BY stretch
ORDER BY range_start
