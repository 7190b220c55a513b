/** Requests to the hub, and its answers. */

import { answerOf, shared } from "./shared.js";

const PATIENCE = 20_000; // milliseconds

/** An answer that is none: its message is for people; its status is 0 where there is no answer at all. */
export class Refusal extends Error {
  constructor(message, status, near = "", at = null) {
    super(message);
    this.status = status;
    this.near = near; // the run that may have been meant
    this.at = at; // the character of a filter that cannot be read
  }
}

/**
 * Return the JSON at a path of the hub; what is left empty in the query is not asked.
 * @throws {Refusal} for every answer that is none, and where there is no answer.
 */
export async function ask(path, query = {}, signal = null) {
  if (shared) {
    const found = answerOf(path, query);
    if (typeof found === "string") throw new Refusal(found, 404);
    return found;
  }
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== null && each !== undefined) words.append(name, each);
    }
  }
  return answered(words.size ? `${path}?${words}` : path, {}, signal);
}

let token = ""; // with which runs are changed: in the memory of this page only

export const mayChange = () => token !== "";

export const takeToken = (given) => { token = given; };

/**
 * Change a run, or delete it where nothing is given to change.
 * @throws {Refusal} as `ask`; a token that was refused is forgotten.
 */
export async function change(run, what = null) {
  const headers = { Authorization: `Bearer ${token}`, "Content-Type": "application/json" };
  try {
    return await answered(pathOf(run), what ? { method: "POST", headers, body: JSON.stringify(what) } : { method: "DELETE", headers });
  } catch (error) {
    if (error.status === 401) takeToken("");
    throw error;
  }
}

async function answered(path, request, signal = null) {
  const late = AbortSignal.timeout(PATIENCE);
  let answer;
  try {
    answer = await fetch(path, {
      ...request,
      headers: { Accept: "application/json", ...request.headers },
      signal: signal ? AbortSignal.any([signal, late]) : late,
    });
    if (answer.ok) return await answer.json();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refusal(`no answer from ${location.host}`, 0);
  }
  let said = {};
  try {
    said = await answer.json();
  } catch {
    // an answer without words
  }
  throw new Refusal(said.error || `the answer is ${answer.status}`, answer.status, said.near);
}

export const silent = () => `No answer from ${location.host}; trying again …`;

export const pathOf = (run) => `/api/runs/${encodeURIComponent(run)}`;
