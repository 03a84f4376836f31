// Screens payment texts for words that call for a second look: Express, JSON over HTTP.
//
// CONVERSION_URL, where it is set, says where a payment goes that may go on. PORT chooses the port.
'use strict';

const express = require('express');

const WATCHED = ['embargo', 'sanction', 'weapon', 'dual-use'];
// What W3C Trace Context has every service hand on; nothing of the sidecar is known here.
const CORRELATION = ['traceparent', 'tracestate'];
const { CONVERSION_URL, PORT = '3000' } = process.env;

const app = express();
app.use(express.json());

app.get('/healthz', (request, response) => {
  response.json({ status: 'ok' });
});

app.post('/screenings', async (request, response) => {
  const { order_id, text, amount, currency, target_currency } = request.body;
  const lower = text.toLowerCase();
  const words = WATCHED.filter((word) => lower.includes(word));
  const risk = ['low', 'medium'][words.length] ?? 'high';
  if (risk === 'high' || !CONVERSION_URL) {
    return response.json({ risk, words });
  }
  const converted = await fetch(CONVERSION_URL, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...correlation(request) },
    body: JSON.stringify({ order_id, amount, currency, target_currency }),
  });
  if (!converted.ok) {
    return response.status(502).json({ error: `conversion answered ${converted.status}` });
  }
  response.json({ risk, words, conversion: await converted.json() });
});

function correlation(request) {
  const brought = CORRELATION.filter((name) => request.get(name));
  return Object.fromEntries(brought.map((name) => [name, request.get(name)]));
}

app.listen(Number(PORT), '127.0.0.1', (error) => {
  if (error) {
    throw error;
  }
});
