// What the desk says about scheduled backups.

import { moment, size } from "../../shared/formats.js";

/** @import { BackupsView } from "../../shared/api_types.js" */

/**
 * The rows of the section: a term and what there is to say about it.
 * @param {BackupsView} backups
 * @returns {[string, string][]}
 */
export function backupRows(backups) {
  const { last_good_at: at, last_good_file: file, last_good_bytes: bytes, restored, failed_at: failed, error } = backups;
  /** @type {[string, string][]} */
  const rows = [["Last good backup", at === null ? "none yet" : `${moment(at)}, ${size(bytes ?? 0)}`]];
  if (at !== null) {
    rows.push(["File", file ?? ""]);
    rows.push(["Check", restored ? "restored into a temporary place; no row is missing" : "unpacked and read; the database's user may create no database to restore it into"]);
  }
  if (failed !== null) rows.push(["Last failure", `${moment(failed)}. ${error ?? ""}`]);
  if (backups.running) rows.push(["Next", "one is being made now"]);
  else if (backups.next_at !== null) rows.push(["Next", moment(backups.next_at)]);
  rows.push(["Folder", backups.folder]);
  return rows;
}
