// Browsers start no workers for pages that are opened from disk. There, the theme's search runs in a hidden frame, which
// takes and sends the same messages. `offline` in mkdocs.yml looks for a script of this name.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const scope = frame.contentWindow;
      scope.document.open();
      scope.document.write("<body></body>");
      scope.document.close();
      scope.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }));
      this.scope = new Promise(done => {
        const script = scope.document.createElement("script");
        Object.assign(script, { src: url, onload: () => done(scope) });
        scope.document.body.append(script);
      });
    }

    async postMessage(data) {
      const scope = await this.scope;
      scope.dispatchEvent(new scope.MessageEvent("message", { data }));
    }
  };
}
