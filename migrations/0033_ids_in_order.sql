-- Ids that are made one after the other are in that order: uuid_v7 has the time to a quarter of a microsecond, and not
-- only to the millisecond, within which the events of a task were listed in any order.
-- +goose Up
CREATE OR REPLACE FUNCTION uuid_v7() RETURNS UUID VOLATILE LANGUAGE sql AS
    'SELECT (overlay(lpad(to_hex((extract(epoch FROM clock_timestamp()) * 4096000)::bigint), 15, ''0'') placing ''7'' from 13 for 0)
        || substr(gen_random_uuid()::text, 20))::uuid';
