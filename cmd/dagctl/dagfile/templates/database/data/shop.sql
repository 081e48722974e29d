-- What the DAG reads, and the role that it reads as.
CREATE SCHEMA shop;
CREATE TABLE shop.orders (
    id bigint PRIMARY KEY,
    product text NOT NULL,
    amount integer NOT NULL,
    price numeric(10, 2) NOT NULL,
    placed_at timestamptz NOT NULL
);
INSERT INTO shop.orders VALUES
    (1, 'tea', 3, 4.50, '2026-01-01 08:00:00+00'),
    (2, 'rum', 1, 19.00, '2026-01-01 09:30:00+00'),
    (3, 'tea', 2, 4.50, '2026-01-02 16:45:00+00');
