-- Sources that list what there is to read are read apart from those that only fire.
-- +goose Up

ALTER TABLE sources
    ADD COLUMN enumerates BOOLEAN NOT NULL DEFAULT false, -- its operator lists what there is to read
    -- The times of its schedule since next_fire_at were missed because of dagctl: each is made up for.
    ADD COLUMN held       BOOLEAN NOT NULL DEFAULT false;
