-- The entries of the audit log that say who read which datasets. Package authz owns the table.
-- +goose Up
CREATE INDEX idx_audit_log_reads ON audit_log (org_id, at DESC) WHERE action IN ('dataset.preview', 'query.run');
