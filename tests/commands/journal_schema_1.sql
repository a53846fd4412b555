CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS groups (
    group_id INTEGER PRIMARY KEY, task_id TEXT NOT NULL, prompt TEXT NOT NULL, state TEXT NOT NULL,
    admitted_version INTEGER NOT NULL, admitted_seconds REAL NOT NULL, step INTEGER, reason TEXT);
CREATE INDEX IF NOT EXISTS groups_by_step ON groups (step);
CREATE TABLE IF NOT EXISTS trajectories (
    trajectory_id TEXT PRIMARY KEY, group_id INTEGER NOT NULL, sample INTEGER NOT NULL,
    prompt_tokens BLOB NOT NULL, finish TEXT, outcome TEXT, correctness REAL, reward REAL, advantage REAL,
    extracted TEXT, detail TEXT, verify_seconds REAL, text TEXT);
CREATE INDEX IF NOT EXISTS trajectories_by_group ON trajectories (group_id);
CREATE TABLE IF NOT EXISTS segments (
    trajectory_id TEXT NOT NULL, position INTEGER NOT NULL, version INTEGER NOT NULL,
    is_continued INTEGER NOT NULL, tokens BLOB NOT NULL, logprobs BLOB NOT NULL,
    PRIMARY KEY (trajectory_id, position)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS commits (
    version INTEGER PRIMARY KEY, checkpoint_folder TEXT NOT NULL, committed_seconds REAL NOT NULL);
CREATE TABLE IF NOT EXISTS streams (
    trajectory_id TEXT NOT NULL, position INTEGER NOT NULL, server TEXT NOT NULL,
    started_seconds REAL NOT NULL);
CREATE INDEX IF NOT EXISTS streams_by_trajectory ON streams (trajectory_id);
CREATE TABLE IF NOT EXISTS repetitions (
    step INTEGER NOT NULL, group_id INTEGER NOT NULL, PRIMARY KEY (step, group_id)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS repetitions_by_group ON repetitions (group_id);
CREATE TABLE IF NOT EXISTS starts (
    version INTEGER PRIMARY KEY, recipe TEXT NOT NULL, started_seconds REAL NOT NULL);
CREATE TABLE IF NOT EXISTS servers (
    url TEXT NOT NULL, action TEXT NOT NULL, is_local INTEGER NOT NULL, named TEXT NOT NULL,
    changed_seconds REAL NOT NULL);
CREATE TABLE IF NOT EXISTS compacted (
    trajectory_id TEXT PRIMARY KEY, num_tokens INTEGER NOT NULL, version_min INTEGER NOT NULL,
    version_max INTEGER NOT NULL, runs TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
INSERT INTO meta VALUES ('schema_version', '1');
