// What the list of canned replies offers besides them: things to do, found by typing "/" and their name.

/** @typedef {{name: string, title: string, description: string, run: () => unknown}} Command */

/** Whether the text of the message box is a command, as it is where a keyboard tells no keys. @param {string} text @param {Command[]} commands */
export const commandIn = (text, commands) => commands.find(({ name }) => text.trim().toLowerCase() === `/${name}`);
