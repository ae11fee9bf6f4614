// The sections of the page, in their order. Each registers itself.

import "./usage.js";
import "./review.js";
import "./templates.js";
import "./people.js";
import "./audit.js";
import { start } from "./desk.js";

start();
