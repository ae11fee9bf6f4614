// Entry point of the page of cases.

import { request } from "../../shared/api.js";
import { byId, prepareAnnouncements } from "../../shared/dom.js";
import { cases } from "./case_api.js";
import { problem } from "./controls.js";
import { CasesPage } from "./page.js";

prepareAnnouncements();
try {
  const [viewer, { inboxes }] = await Promise.all([request("GET", "/api/desk"), cases.inboxes()]);
  await new CasesPage(viewer, inboxes).start();
} catch (error) {
  byId("cs-trouble").replaceChildren(problem(error));
}
