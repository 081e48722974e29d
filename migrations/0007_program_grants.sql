-- The jobs whose programs may get a secret. A program can send it anywhere, so a binding to hosts is not enough.
-- +goose Up

ALTER TABLE secrets ADD COLUMN programs TEXT[] NOT NULL DEFAULT '{}'; -- DAG/JOBs, all of them in jobs, too
GRANT SELECT (programs) ON secrets TO dagctl_app;
