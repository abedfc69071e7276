SELECT first, id FROM generation ORDER BY first
