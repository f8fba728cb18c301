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
export const read = (path, query = {}, signal) => answer(`v1/${path}`, query, signal);

/** The series of a range query in PromQL, over times in seconds. Rejects like `read`. */
export async function ranges(query, { start, end, step }, signal) {
  const { data } = await answer("prometheus/api/v1/query_range", { query, start, end, step }, signal);
  return data.result;
}

/** A value may be a list: the parameter is given several times. */
async function answer(path, query, signal) {
  const all = Object.entries(query).flatMap(([name, value]) => [value].flat().map((one) => [name, one]));
  const search = new URLSearchParams(all.filter(([, value]) => value != null && value !== "")).toString();
  const headers = { accept: "application/json" };
  if (token.get()) headers.authorization = `Bearer ${token.get()}`;
  const { status, body } = await request(`${path}${search && `?${search}`}`, headers, signal);
  let json = null;
  try {
    json = JSON.parse(body);
  } catch {
    // Reported below.
  }
  if (status === 200 && json) return json;
  const detail = json?.error?.detail ?? json?.error?.reason ?? json?.error;
  throw new Failed(status, detail ?? `status ${status} without a message`);
}

/** Removes the inherited members of an object with names from senders, which may be `constructor`. */
export const own = (object) => object && Object.setPrototypeOf(object, null);

/** Calls `take` with each object of an NDJSON stream until it ends. Rejects like `read`. */
export async function follow(path, query, take, signal) {
  const wanted = Object.entries(query).filter(([, value]) => value !== "");
  const search = new URLSearchParams(wanted).toString();
  const headers = token.get() ? { authorization: `Bearer ${token.get()}` } : {};
  const options = { headers, signal, cache: "no-store", credentials: "same-origin", redirect: "error" };
  let response;
  try {
    response = await fetch(`v1/${path}${search && `?${search}`}`, options);
  } catch (error) {
    if (signal.aborted) throw error;
    throw new Failed(0, "no answer");
  }
  if (response.status !== 200) {
    const json = await response.json().catch(() => null);
    throw new Failed(response.status, json?.error?.detail ?? `status ${response.status} without a message`);
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ; ) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line) take(JSON.parse(line));
  }
}
