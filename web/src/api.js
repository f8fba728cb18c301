// Requests to the service. The token is sent in a header, kept for this tab only, and never part of a URL.

const KEY = "hourbucket-token";

/** A failed request. `status` is 0 if no response arrived. `detail` is the message of the service. */
export class Failed extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

export const token = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

const PATIENCE_MS = 15_000;

async function request(path, headers, signal) {
  const signals = [AbortSignal.timeout(PATIENCE_MS), ...(signal ? [signal] : [])];
  try {
    // "error": a redirect could send the token to another host.
    const options = { headers, cache: "no-store", credentials: "same-origin", redirect: "error" };
    const response = await fetch(path, { ...options, signal: AbortSignal.any(signals) });
    return { status: response.status, body: await response.text() };
  } catch (error) {
    if (signal?.aborted) throw error;
    const why = error.name === "TimeoutError" ? `no answer within ${PATIENCE_MS / 1000} s` : "no answer";
    throw new Failed(0, why);
  }
}

/** Reads a page that requires no token. Resolves for every status. */
export const open = (path, signal) => request(path, {}, signal);

/**
 * Queries the read API. Rejects with `Failed`, or with an AbortError, which callers ignore.
 */
export async function read(path, query = {}, signal) {
  const wanted = Object.entries(query).filter(([, value]) => value != null && value !== "");
  const search = new URLSearchParams(wanted).toString();
  const headers = { accept: "application/json" };
  if (token.get()) headers.authorization = `Bearer ${token.get()}`;
  const { status, body } = await request(`v1/${path}${search && `?${search}`}`, headers, signal);
  let json = null;
  try {
    json = JSON.parse(body);
  } catch {
    // Reported below.
  }
  if (status === 200 && json) return json;
  const detail = json?.error?.detail ?? json?.error?.reason;
  throw new Failed(status, detail ?? `status ${status} without a message`);
}
