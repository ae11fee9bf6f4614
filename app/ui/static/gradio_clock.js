// Gradio shows for how many seconds something is loading, and this page hides that. But the clock of the picture it loads
// with is never stopped: it would have the page drawn with every frame for as long as it is open. Gradio's scripts take
// what they find here when they are loaded, so this runs before them.
{
  const clock = /\(performance\.now\(\)-[\w$]+\([\w$]+\)\)\/1e3\),[\w$]+&&[\w$]+\(\)/;
  const request = window.requestAnimationFrame;
  window.requestAnimationFrame = (callback) => (clock.test(callback) ? 0 : request.call(window, callback));
}
