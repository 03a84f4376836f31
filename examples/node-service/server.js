// Counts words, lines and characters. Plain Node, no packages; nothing here knows of Hermes.
'use strict';

const http = require('node:http');

function statistics(text) {
  const words = text.split(/\s+/u).filter(Boolean);
  return {
    characters: [...text].length,
    words: words.length,
    lines: text === '' ? 0 : text.split('\n').length,
    longest_word: words.reduce((a, b) => ([...b].length > [...a].length ? b : a), ''),
  };
}

function reply(response, status, value) {
  const body = JSON.stringify(value);
  response.writeHead(status, {
    'Content-Type': 'application/json',
    'Content-Length': Buffer.byteLength(body),
  });
  response.end(body);
}

const server = http.createServer((request, response) => {
  if (request.method === 'GET' && request.url === '/healthz') {
    return reply(response, 200, { status: 'ok' });
  }
  if (request.method !== 'POST' || request.url !== '/statistics') {
    return reply(response, 404, { error: 'not found' });
  }
  const chunks = [];
  request.on('data', (chunk) => chunks.push(chunk));
  request.on('end', () => {
    const { text } = JSON.parse(Buffer.concat(chunks).toString('utf8'));
    reply(response, 200, statistics(text));
  });
});

server.listen(Number(process.env.PORT ?? 3000), '127.0.0.1');
