-- The orders of the shop, in MySQL or MariaDB.
CREATE TABLE orders (
  id INT PRIMARY KEY,
  customer_id INT NOT NULL,
  product VARCHAR(20) NOT NULL,
  amount INT NOT NULL,
  price DECIMAL(10, 2) NOT NULL,
  currency CHAR(3) NOT NULL,
  ordered_on DATE NOT NULL
);

INSERT INTO orders VALUES
  (1, 1, 'teapot', 1, 38.00, 'EUR', '2026-03-02'),
  (2, 2, 'green tea', 4, 6.50, 'CHF', '2026-03-02'),
  (3, 3, 'green tea', 2, 5.90, 'GBP', '2026-03-03'),
  (4, 1, 'black tea', 3, 5.20, 'EUR', '2026-03-03'),
  (5, 2, 'teapot', 1, 41.00, 'CHF', '2026-03-03'),
  (6, 3, 'black tea', 10, 4.80, 'GBP', '2026-03-04');
