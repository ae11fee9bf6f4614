// Scheduled backups: when the last good one was. For admins.

import { request } from "../../shared/api.js";
import { make } from "../../shared/dom.js";
import { backupRows } from "./backup_texts.js";
import { register } from "./desk.js";

/** @import { BackupsView } from "../../shared/api_types.js" */

/** @param {HTMLElement} place */
async function show(place) {
  /** @type {BackupsView} */
  const backups = await request("GET", "/api/desk/backups");
  if (!backups.scheduled) {
    place.append(make("p", { class: "dm-alert" }, "No backups are scheduled. Set APP_BACKUP_AT or APP_BACKUP_EVERY_HOURS to make them."));
  } else {
    place.append(make("p", { class: "dk-lead" }, "Each backup is restored and checked before it counts as good; then old ones are deleted."));
  }
  if (!backups.scheduled && backups.last_good_at === null) return;
  const rows = backupRows(backups).flatMap(([term, text]) => [make("dt", {}, term), make("dd", {}, text)]);
  place.append(make("dl", { class: "dk-facts" }, ...rows));
}

register({ id: "backups", title: "Backups", roles: ["admin"], show });
