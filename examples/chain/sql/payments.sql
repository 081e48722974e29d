-- Values have up to 256 bits, so they are text. All the ether there is has 27 digits in wei.
SELECT
    min(block_number) // 10 * 10 AS range_start,
    to_address AS account,
    count(*) AS payments,
    sum(value::DECIMAL(38, 0))::DECIMAL(38, 0) AS wei
FROM transactions
WHERE to_address IS NOT NULL AND value <> '0'
GROUP BY to_address
ORDER BY account
