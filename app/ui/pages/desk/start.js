// Entry point of the desk page. Each section registers itself on import; the import order is the menu order.

import "./usage.js";
import "./case_figures.js";
import "./review.js";
import "./templates.js";
import "./knowledge.js";
import "./gaps.js";
import "./inboxes.js";
import "./webhooks.js";
import "./users.js";
import "./audit.js";
import "./backups.js";
import { start } from "./desk.js";

start();
