// Types of the chat's value and of its actions.

import type { DecodeLimit } from "../../shared/page_options.js";
import type { LensChoice, LensView, SettingDifference } from "../../shared/api_types.js";

export interface MessageStats {
  prompt_tokens: number;
  cached_prompt_tokens?: number | null; // null: unknown
  completion_tokens: number;
  ttft_ms?: number; // time to the first token
  tokens_per_second?: number;
  tokenize_ms?: number | null; // phases; null: unknown
  queue_ms?: number | null; // part of ttft_ms
  decode_ms?: number | null;
  delivery_ms?: number | null;
  draft_tokens?: number | null;
  accepted_draft_tokens?: number | null;
  finish_reason?: string;
}

/** Feedback on a reply. */
export interface MessageFeedback {
  rating: "up" | "down";
  reasons: string[];
  comment: string;
}

/** A call of a tool; see messages.py. */
export interface ToolUse {
  id: string;
  name: string;
  arguments: string;
  status: "waiting" | "allowed" | "done" | "failed" | "denied";
  result?: string;
  round?: number;
  at?: number; // code points of the content before it
  seconds?: number | null;
}

/** A passage that a reply cites by its number; see messages.py. */
export interface Citation {
  number: number;
  title: string;
  heading: string; // the headings above it, joined by " > "
  text: string;
  withheld?: string | null; // why the text is empty
  listed?: boolean; // the reply only lists it as found, so that it is shown open
  document_id?: string; // with these, the document can be opened at the passage
  version?: number;
  start?: number; // code points of the version's text before it
  end?: number;
}

/** What a user decided about the calls that wait in a reply. */
export interface Decision {
  allow: string[];
  allow_for_chat: string[];
  deny: string[];
}

/** A message; see messages.py. */
export interface Message {
  id: string; // its own, or made from its position
  role: "user" | "assistant";
  content: string;
  status?: string;
  mayGrow?: boolean; // it has no status of its own, so more text may follow
  error?: string | null;
  reasoning?: string; // what the model thought before it answered
  reasoning_seconds?: number | null; // how long it thought
  tool_uses?: ToolUse[];
  citations?: Citation[];
  stats?: MessageStats | null;
  siblings?: string[];
  feedback?: Partial<MessageFeedback> | null;
  omitted_messages?: number;
  context_length?: number | null;
  model?: string | null;
  has_system_prompt?: boolean;
  seed?: number | null;
  edited?: boolean; // the user has written its beginning
  differences?: SettingDifference[]; // from the version before it, or, of the first, after it
}

/** How a reply ended. */
export type End = Pick<Message, "status" | "stats" | "error" | "reasoning_seconds">;

/**
 * What users can do with a message. The results of functions that change something are false, or a promise of false, if
 * the change was refused.
 */
export interface Actions {
  offers(name: string): boolean; // whether an action is offered
  edit(id: string, text: string): unknown;
  regenerate(id: string): unknown;
  resume(id: string, isLast: boolean): unknown; // a reply that messages follow goes on as another version
  rewrite(id: string, text: string): unknown; // another version, which begins with the text
  compare(id: string): unknown; // several replies in its place, side by side
  keep(id: string): unknown; // ends a comparison with this version
  useSettings(id: string): unknown; // puts what it was written with into the settings panel
  decide(id: string, decision: Decision): unknown;
  branch(id: string): unknown;
  prompt(id: string): unknown; // shows the prompt that the reply answers
  lens(id: string): Promise<LensView>; // how the reply's tokens were chosen
  lensChoice(id: string, index: number): Promise<LensChoice>;
  branchAt(id: string, index: number, tokenId: number): unknown; // writes another version from there on
  remove(id: string): unknown;
  show(id: string, step: string, shown: string): unknown; // shows version `id` in place of `shown`
  rate(id: string, feedback: MessageFeedback | null): unknown; // rejects if it could not be saved; null: there is none
  openSource(id: string, citation: Citation): unknown; // shows the document that a reply cites
  mark(id: string, citation: Citation): unknown; // the passage answers the question
  draftKey(id: string): string | null; // where an unsent edit is kept; null: nowhere
  limitOf(model: string): DecodeLimit | null; // of the speed of a reply by this model; null: unknown
  onError(error: unknown): unknown;
}
