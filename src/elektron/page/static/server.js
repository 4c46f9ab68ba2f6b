// Asking the server, and what to say when it does not answer.

const TOKEN = "elektron-token";

// The token comes behind a "#", which browsers send to nobody; it is taken off the address and kept for this tab.
function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem(TOKEN, given);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem(TOKEN) ?? "";
}

const token = takeToken();
addEventListener("hashchange", () => location.reload()); // a token that is added to the address of an open page

export class Refusal extends Error {
  constructor(status, code, message, waitSeconds) {
    super(message);
    Object.assign(this, { status, code, waitSeconds });
  }

  get passes() {
    return this.status === 0 || this.status === 429 || this.status >= 500;
  }
}

export async function ask(path, body, signal) {
  const headers = { ...(body && { "Content-Type": "application/json" }), ...(token && { Authorization: `Bearer ${token}` }) };
  let answer, content;
  try {
    answer = await fetch(path, { method: body ? "POST" : "GET", body: body && JSON.stringify(body), headers, signal });
    content = await answer.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, "gone", "", 0);
  }
  if (answer.ok) return content;
  const { code = "failed", message = "" } = content.error ?? {};
  throw new Refusal(answer.status, code, message, Number(answer.headers.get("Retry-After") ?? 0));
}

export function inWords(refusal, seconds) {
  const again = seconds ? ` Trying again in ${seconds === 1 ? "a second" : `${seconds} seconds`}.` : "";
  if (refusal.status === 0) return `The server does not answer. Your text is safe here.${again}`;
  if (refusal.status === 429) return `That was a little fast for the server.${again}`;
  if (refusal.status === 401)
    return "This server wants its token: open the page with #token=… and yours at the end of its address.";
  if (refusal.status === 413) return refusal.message || "This text is too long for the server.";
  if (refusal.status >= 500) return `The server has trouble reading this just now.${again}`;
  return refusal.message || "The server did not understand that.";
}
