// Written by `make docs`: the languages of app/cases/locale, and the texts' own.

/** @type {string[]} */
export const languages = ["de", "en"];
