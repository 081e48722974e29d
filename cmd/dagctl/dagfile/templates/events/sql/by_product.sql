SELECT product, count(*) AS orders, sum(amount) AS amount
FROM received
GROUP BY product
ORDER BY product
