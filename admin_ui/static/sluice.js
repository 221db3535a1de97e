// Two small things that HTML alone cannot do: keep the live part of a page true, and copy a secret.
// The server renders; this file only carries its HTML into the page. Without it, pages still work.

const STALE_AFTER_MS = 5000;
const POLL_EVERY_MS = 5000;

const region = document.querySelector("[data-live]");
if (region) followLive(region);
for (const button of document.querySelectorAll("[data-copy]")) button.addEventListener("click", copy);

// One stream per browser and address: browsers open only six connections to a host, and a stream holds one. The
// tab that has the lock opens the stream and tells the others. A hidden tab lets go.
function followLive(region) {
  const name = `sluice-live ${region.dataset.live}`;
  const channel = new BroadcastChannel(name);
  let stopLeading = null;
  let source = null;
  let poll = 0;
  let heardAt = Date.now();

  const hear = (html) => {
    heardAt = Date.now();
    show(region, html);
    tell("live", "Live");
  };
  channel.onmessage = ({ data }) => document.hidden || hear(data);

  const openSource = () => {
    source = new EventSource(region.dataset.live);
    source.addEventListener("drawn", ({ data }) => { hear(data); channel.postMessage(data); });
    source.addEventListener("signed-out", () => location.reload());
    source.onerror = () => { if (source?.readyState === EventSource.CLOSED) poll ||= setInterval(ask, POLL_EVERY_MS); };
  };
  const ask = async () => {  // the stream was refused: look at the page itself now and then
    const answer = await fetch(location.href).catch(() => null);
    if (answer?.redirected) location.reload();
    const page = answer?.ok && new DOMParser().parseFromString(await answer.text(), "text/html");
    const html = page && page.querySelector("[data-live]")?.innerHTML;
    if (html) hear(html);
  };
  const close = () => {
    source?.close();
    clearInterval(poll);
    [source, poll] = [null, 0];
  };

  const start = () => {
    heardAt = Date.now();
    if (!navigator.locks) return openSource();  // plain http on another host: no lock, so a stream per tab
    const waiting = new AbortController();
    stopLeading = () => waiting.abort();
    const lead = () => new Promise((done) => { stopLeading = done; openSource(); });
    navigator.locks.request(name, { signal: waiting.signal }, lead).catch(() => {});
  };
  const stop = () => {
    close();
    stopLeading?.();
    tell("waiting", "Paused");
  };

  document.addEventListener("visibilitychange", () => (document.hidden ? stop() : start()));
  addEventListener("pagehide", stop);
  addEventListener("pageshow", ({ persisted }) => persisted && start());
  setInterval(() => {
    if (!document.hidden && Date.now() - heardAt > STALE_AFTER_MS) tell("stale", "Reconnecting");
  }, 1000);
  if (!document.hidden) start();
}

function tell(state, text) {
  const place = document.querySelector("[data-live-state]");
  if (place.dataset.liveState === state) return;
  place.dataset.liveState = state;
  place.querySelector("[data-live-text]").textContent = text;
}

function show(region, html) {
  const fresh = new DOMParser().parseFromString(html, "text/html").body;
  syncChildren(region, fresh);
}

// Changes only what differs, so that scroll positions, focus and selected text survive every second.
function sync(old, fresh) {
  if (old.nodeName !== fresh.nodeName) return old.replaceWith(fresh);
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  syncChildren(old, fresh);
}

function syncChildren(old, fresh) {
  const before = [...old.childNodes];
  const after = [...fresh.childNodes];
  after.forEach((node, place) => (place < before.length ? sync(before[place], node) : old.append(node)));
  for (const node of before.slice(after.length)) node.remove();
}

async function copy({ currentTarget: button }) {
  const source = document.getElementById(button.dataset.copy);
  try {
    await navigator.clipboard.writeText(source.textContent);
    button.textContent = "Copied";
  } catch {  // no clipboard on plain http: select it, so that one keystroke copies
    getSelection().selectAllChildren(source);
    button.textContent = "Selected";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
}
