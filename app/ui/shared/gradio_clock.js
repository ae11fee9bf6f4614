// Stops the timer of Gradio's loading indicator. Gradio never stops it itself, although this page hides the indicator,
// so it would redraw the page on every frame for as long as the page is open. Gradio's scripts capture
// requestAnimationFrame when they load, so this must run before them.
{
  const clock = /\(performance\.now\(\)-[\w$]+\([\w$]+\)\)\/1e3\),[\w$]+&&[\w$]+\(\)/;
  const request = window.requestAnimationFrame;
  window.requestAnimationFrame = (callback) => (clock.test(String(callback)) ? 0 : request.call(window, callback));
}
