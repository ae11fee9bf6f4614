// Types of GET /ui/options, which app/ui/options.py makes.

import type { ChatSettings, OwnPreset, UserRole, Variable } from "./api_types.js";

/** A sampling parameter, or another setting of a chat, with a control of its own. */
export interface ParameterOptions {
  name: string;
  label: string;
  kind: string;
  unit: string;
  unset: unknown; // the value of a setting that is left to the model
  is_slider: boolean;
  is_advanced: boolean;
  is_recommendable: boolean;
}

/** A preset, with a value for every parameter that presets set; null is the model's own default. */
export interface PresetOptions {
  name: string;
  title: string;
  description: string;
  [parameter: string]: string | number | null;
}

/** A system prompt. */
export interface PromptOptions {
  name: string;
  title: string;
  description: string;
  text: string; // with the defaults of its variables
  variables: Variable[];
  min_parameters: number | null; // how many the model needs; null: any model will do
  recommended: Partial<ChatSettings>;
}

/** What bounds the speed of one chat with the loaded model, where that is known. */
export interface DecodeLimit {
  bytes_per_second: number; // that the machine reads from memory, as measured
  weight_bytes: number; // read by each token
  cache_bytes: number; // read by each token for each one before it
}

export interface PageOptions {
  accounts: boolean;
  user: { name: string | null; role: UserRole };
  retention_days: number | null;
  model: { name: string; max_model_len: number; num_parameters: number; can_continue: boolean; can_inspect: boolean; can_think: boolean; can_call_tools: boolean; adapters: string[]; remote: boolean; is_loading: boolean; is_downloading: boolean; decode_limit: DecodeLimit | null };
  suggested_model: { name: string; title: string; size_mb: number; licence: string } | null; // while the guide is loaded
  welcome: { good_for: string; examples: string[] }; // what an empty chat shows, for the model that is loaded
  parameters: ParameterOptions[];
  defaults: Record<string, number>;
  presets: PresetOptions[];
  own_presets: OwnPreset[]; // which this user has saved
  new_chat_settings: ChatSettings | null; // what this user's new chats begin with
  collections: { id: string; name: string; is_empty: boolean }[]; // of documents, which this user may use
  prompts: PromptOptions[];
}
