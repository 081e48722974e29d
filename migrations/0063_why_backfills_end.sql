-- Why a backfill ended before it was through. Package dispatcher owns the table.
-- +goose Up
ALTER TABLE backfills ADD COLUMN reason TEXT;
