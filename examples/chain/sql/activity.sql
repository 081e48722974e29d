SELECT
    min(block_number) AS first_block,
    max(block_number) AS last_block,
    count(*) AS blocks,
    sum(transaction_count)::BIGINT AS transactions,
    (SELECT count(*) FROM logs) AS logs,
    round(sum(gas_used) / sum(gas_limit), 6) AS fullness
FROM blocks
