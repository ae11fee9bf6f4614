// Rules for the pages' scripts and their tests. Types, and names that nothing defines, are the compiler's part.

import js from "@eslint/js";

// Text from users and models reaches the page through textContent or the sanitiser, never as HTML or code.
const UNSAFE = "Write text with textContent, or HTML with sanitizeHtml().";
const unsafeProperties = ["innerHTML", "outerHTML", "insertAdjacentHTML", "setHTMLUnsafe", "parseHTMLUnsafe"];

export default [
  { ignores: ["**/vendor/**", "**/node_modules/**"] },
  js.configs.recommended,
  {
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      "no-undef": "off",
      "no-var": "error",
      "prefer-const": "error",
      eqeqeq: "error",
      "no-eval": "error",
      "no-implied-eval": "error",
      "no-new-func": "error",
      "no-self-compare": "error",
      "no-throw-literal": "error",
      "no-unused-expressions": "error",
      "no-use-before-define": ["error", { functions: false, variables: false }],
      "object-shorthand": "error",
      "prefer-promise-reject-errors": "error",
      "no-restricted-properties": ["error", ...unsafeProperties.map((property) => ({ property, message: UNSAFE }))],
    },
  },
];
