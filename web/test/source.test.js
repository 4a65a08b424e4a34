import assert from 'node:assert/strict';
import test from 'node:test';

import { inDocument } from '#source';

test('a document that holds its data is read like a server', async () => {
  const source = inDocument({ 'api/run': { name: 'r' }, 'api/steps/1/table': { base64: 'UlNDMQ==' } });
  assert.equal(source.isLive, false);
  assert.deepEqual(await source.json('api/run'), { name: 'r' });
  assert.deepEqual([...new Uint8Array(await source.bytes('api/steps/1/table'))], [0x52, 0x53, 0x43, 0x31]);
  assert.equal((await source.bytes('api/steps/1/table?from=0')).byteLength, 4);
  await assert.rejects(source.json('api/steps'), /does not hold/);
  await assert.rejects(source.json('constructor'), /does not hold/);
});
