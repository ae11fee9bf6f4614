// Lets a listener in Python fail if its request is lost. Gradio tells a lost request from one that the server refuses, and
// then ends all listeners of the page and loads it again, so it gets the refusal of a server.
{
  const request = window.fetch;
  window.fetch = async (input, init) => {
    try {
      return await request.call(window, input, init);
    } catch (cause) {
      if (!/\/gradio_api\/run\//.test(input instanceof Request ? input.url : String(input))) throw cause;
      return Response.json({ error: "The connection to the server was lost." }, { status: 502 });
    }
  };
}
