// What /api/widget sends.

export interface Citation {
  number: number;
  title: string;
  heading?: string;
  text: string;
}

export interface StoredFile {
  id: string;
  name: string;
  type: string;
  size: number;
}

export interface Message {
  id: string;
  author: { kind: "contact" | "bot" | "agent" | "system"; name: string | null };
  text: string;
  status: string;
  created_at: string;
  client_id: string | null;
  citations?: Citation[];
  attachments?: StoredFile[];
}

export interface CaseState {
  status: "bot" | "open" | "snoozed" | "resolved";
  agent: { name: string } | null;
  open: boolean;
  opens_at: string | null;
  rating: boolean;
}

export interface Contact {
  name: string | null;
  email: string | null;
  verified: boolean;
}

export interface Inbox {
  name: string;
  greeting: string;
  bot: boolean;
  open: boolean;
  opens_at: string | null;
}

export interface Session {
  token: string;
  expires_at: string;
  inbox: Inbox;
  case: CaseState | null;
  messages: Message[];
  contact: Contact;
  attachments?: boolean;
  last_event_id?: string | null;
  /** Why the website's token was not accepted. */
  identity_error?: string | null;
}

/** A message that waits for being sent. */
export interface Pending {
  client_id: string;
  text: string;
  files: StoredFile[];
  at: number;
  problem: string | null;
}

export interface TalkState {
  /** Null until the session has begun. */
  inbox: Inbox | null;
  case: CaseState | null;
  contact: Contact | null;
  messages: Message[];
  canAttach: boolean;
  isOnline: boolean;
  /** Of the person who types; null if none does. */
  typing: string | null;
  /** Whether something was missed, so that the session has to be read again. */
  isStale: boolean;
  /** Why there is no talk, in a sentence; "" if there is. */
  problem: string;
}

export type TalkEvent =
  | { type: "session"; session: Session }
  | { type: "message"; message: Message }
  | { type: "delta"; message_id: string; offset: number; text: string }
  | { type: "case"; case: CaseState | null }
  | { type: "contact"; contact: Contact }
  | { type: "typing"; name: string | null }
  | { type: "connection"; isOnline: boolean }
  | { type: "problem"; problem: string };
