// Entry point of the desk page. Each section registers itself on import; the import order is the menu order.

import "./usage.js";
import "./review.js";
import "./templates.js";
import "./knowledge.js";
import "./gaps.js";
import "./users.js";
import "./audit.js";
import { start } from "./desk.js";

start();
