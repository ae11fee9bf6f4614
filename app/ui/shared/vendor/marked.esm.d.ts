// Types of what the page uses of marked.

export interface Token {
  type: string;
  raw: string;
  text?: string;
  [name: string]: unknown;
}

export interface Renderer {
  parser: { parse(tokens: Token[]): string; parseInline(tokens: Token[]): string };
}

export interface Extension {
  name: string;
  level: string;
  start(source: string): number | undefined;
  tokenizer(this: any, source: string, tokens: Token[]): Token | undefined;
  renderer(this: any, token: Token): string;
}

export interface Options {
  gfm?: boolean;
  breaks?: boolean;
  extensions?: Extension[];
  tokenizer?: Record<string, (source: string) => false | undefined>;
  renderer?: Record<string, (this: Renderer, token: any) => string>;
}

export class Marked {
  constructor(options: Options);
  defaults: Options;
  parser(tokens: Token[]): string;
}

export class Lexer {
  constructor(options: Options);
  lex(source: string): Token[];
  inlineTokens(source: string, tokens?: Token[]): Token[];
}
