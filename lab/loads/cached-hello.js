// The published k6 script (ARC2 blog), with its X and its URL taken from the environment:
//
//   k6 run --env USERS=1000 --env TARGETS=127.0.0.1:8080 --env RAMP_MS=5000 --env HOLD_MS=30000 --env PAUSE_MS=1000 cached-hello.js
//
// The summary goes to standard output as JSON, with more percentiles than k6 prints by itself.
import http from 'k6/http';
import { sleep } from 'k6';

const users = Number(__ENV.USERS);
const urls = __ENV.TARGETS.split(',').map((target) => `http://${target}/`);
const pause = Number(__ENV.PAUSE_MS) / 1000;

export const options = {
  stages: [
    { duration: `${__ENV.RAMP_MS}ms`, target: users },
    { duration: `${__ENV.HOLD_MS}ms`, target: users },
  ],
  insecureSkipTLSVerify: true,
  summaryTrendStats: ['avg', 'min', 'med', 'max', 'p(90)', 'p(95)', 'p(99)', 'p(99.9)'],
};

export default function () {
  http.get(urls[__VU % urls.length]);
  sleep(pause);
}

export function handleSummary(data) {
  // The run's own length has the last rests in it, in which nothing is asked.
  const planned_ms = Number(__ENV.RAMP_MS) + Number(__ENV.HOLD_MS);
  return { stdout: JSON.stringify({ planned_ms, ...data }) };
}
